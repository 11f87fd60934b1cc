SELECT names, tokens FROM tenure WHERE client = :client_id \gset
SELECT * FROM lease_extend_many(:names, :tokens);
