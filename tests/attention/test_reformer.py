from tests.attention.contract import AttentionContract


class TestStrictReformer(AttentionContract):
    mechanism = "reformer"
    settings = {"bucket_size": 4}


class TestStrictReformerOfFourHashes(AttentionContract):
    mechanism = "reformer"
    settings = {"bucket_size": 4, "n_hashes": 4}


class TestPublishedReformer(AttentionContract):
    mechanism = "reformer"
    settings = {"bucket_size": 2, "causality": "published"}


class TestPublishedReformerOfFourHashes(AttentionContract):
    mechanism = "reformer"
    settings = {"bucket_size": 2, "n_hashes": 4, "causality": "published"}
