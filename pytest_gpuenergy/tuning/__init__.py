"""TVM's part: the search for schedules, and from scheduling records to CUDA text."""
