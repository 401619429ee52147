package topology

// Backend is what the built-in template for HAProxy calls the backend of a pool.
// Its servers are called as the nodes are.
func Backend(cluster, pool string) string { return "be_" + cluster + "_" + pool }
