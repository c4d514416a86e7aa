from tests.attention.contract import AttentionContract


class TestClustered(AttentionContract):
    mechanism = "clustered"
    settings = {"n_clusters": 3, "n_top_keys": 3}


class TestClusteredBidirectional(AttentionContract):
    mechanism = "clustered"
    settings = {"n_clusters": 3, "n_top_keys": 3, "bidirectional": True}
