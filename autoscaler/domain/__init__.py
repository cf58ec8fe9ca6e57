"""The words: frozen values, and nothing that reaches outside the process."""
