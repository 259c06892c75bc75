"""What a run records: frozen structs and their JSON form. Imports only `support`."""
