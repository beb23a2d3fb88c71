"""What people ask of a store that no broker holds: what it is, what it holds, is it sound, make it anew."""
