"""Draft heads trained on the target itself: it writes texts, its hidden states are kept, a head learns its law."""
