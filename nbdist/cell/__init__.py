"""Cell text to what runs on the ranks: the names it uses, and how they get there."""
