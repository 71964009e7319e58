"""The package `declare` protects views while Python imports the project's modules, or refuses them with an error."""
