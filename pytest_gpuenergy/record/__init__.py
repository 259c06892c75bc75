"""What a run leaves behind: frozen records and their form in JSON. Stands on `support` alone."""
