SELECT pg_catalog.md5(pg_catalog.string_agg(x, '|' ORDER BY x)) FROM (
    SELECT t::text AS x FROM lock_ext.lease AS t UNION ALL SELECT t::text FROM lock_ext.lease_checkpoint AS t
    UNION ALL SELECT t::text FROM lock_ext.once_key AS t UNION ALL SELECT t::text FROM lock_ext.observed_token AS t
    UNION ALL SELECT t::text FROM fuzz.types AS t UNION ALL SELECT t::text FROM fuzz.keyed AS t
    UNION ALL SELECT t::text FROM fuzz.parted AS t UNION ALL SELECT t::text FROM fuzz.parent AS t
    UNION ALL SELECT t::text FROM fuzz.foreigners AS t UNION ALL SELECT t::text FROM fuzz.canary AS t
) AS t
