"""Upgrades while requests are served: real processes of the previous release and of this one, on one database."""
