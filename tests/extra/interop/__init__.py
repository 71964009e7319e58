"""Other people's programs that repeat work by themselves: clients and proxies, each as real processes."""
