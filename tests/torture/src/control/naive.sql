-- The fence that most people write.
CREATE FUNCTION naive_check() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    given bigint := nullif(current_setting('naive.token', true), '');
    latest bigint;
BEGIN
    SELECT token INTO latest FROM lock_ext.lease
     WHERE name = coalesce(TG_ARGV[0], to_jsonb(NEW) ->> 'lease') AND expires_at IS NOT NULL;
    IF given IS DISTINCT FROM latest THEN
        RAISE EXCEPTION 'token % is not current', given USING ERRCODE = 'LX001';
    END IF;
    RETURN NEW;
END
$$;
CREATE TRIGGER naive BEFORE INSERT OR UPDATE ON entry FOR EACH ROW EXECUTE FUNCTION naive_check();
CREATE TRIGGER naive BEFORE INSERT OR UPDATE ON register FOR EACH ROW EXECUTE FUNCTION naive_check('register');
CREATE TRIGGER naive BEFORE INSERT OR UPDATE ON growing FOR EACH ROW EXECUTE FUNCTION naive_check('set');
CREATE TRIGGER naive BEFORE INSERT OR UPDATE ON reward FOR EACH ROW EXECUTE FUNCTION naive_check('batch');
CREATE TRIGGER naive BEFORE INSERT OR UPDATE ON progress FOR EACH ROW EXECUTE FUNCTION naive_check('batch');
