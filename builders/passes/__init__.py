"""Graph passes, one a file: each takes a model and says what it needs of it and what it leaves."""
