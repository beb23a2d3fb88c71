"""Behaviour that single client versions need, each behind one hook."""
