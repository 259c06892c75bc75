"""The settings of a card: what is asked, who may write it, and how it is put back."""
