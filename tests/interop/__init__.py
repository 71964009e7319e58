"""Other people's programs that repeat work by themselves: clients, proxies and brokers, each as real processes."""
