"""The settings of a card: what is requested, who may write them, and how they are restored."""
