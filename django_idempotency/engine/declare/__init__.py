"""When a module of the project is imported, its views get their protection here, or are refused."""
