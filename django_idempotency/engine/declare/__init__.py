"""While Python imports a module of the project, the package `declare` protects its views, or raises an error."""
