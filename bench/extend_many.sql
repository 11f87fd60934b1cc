SELECT count(e.expires_at) FROM tenure, lease_extend_many(names, tokens) AS e WHERE client = :client_id;
