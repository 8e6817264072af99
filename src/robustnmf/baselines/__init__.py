"""Models that have an algorithm of their own: one file each, features in rows as in the paper."""
