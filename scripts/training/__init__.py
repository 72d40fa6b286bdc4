"""Makes the small Gemma 4 pair: corpus, tokenizer, models, training, card."""
