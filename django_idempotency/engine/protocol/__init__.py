"""The rules, in pure Python: no Django, no database, no clock."""
