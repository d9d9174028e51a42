"""A page to look at: results as one HTML file with linked charts."""
