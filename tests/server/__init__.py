"""A project that the crash and server tests run on real gunicorn processes."""
