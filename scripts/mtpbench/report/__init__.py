"""From committed results to what people read: tables, plots, page, advice, exports."""
