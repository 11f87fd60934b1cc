REVOKE EXECUTE ON FUNCTION lease_acquire_session(text, text, interval) FROM PUBLIC;
