-- What users can see and call, with its labels and rights: a change here is a change of our interface.
SELECT p.oid::regprocedure AS function, pg_get_function_result(p.oid) AS result, p.provolatile AS volatile, p.proparallel AS parallel,
       p.proisstrict AS strict, p.prosecdef AS definer, p.proacl IS NULL OR has_function_privilege('public', p.oid, 'EXECUTE') AS public
  FROM pg_proc AS p JOIN pg_depend AS d ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e'
  JOIN pg_extension AS e ON e.oid = d.refobjid AND e.extname = 'lock_ext'
 WHERE p.pronamespace <> 'lock_ext'::regnamespace
 ORDER BY p.oid::regprocedure::text COLLATE "C";
SELECT proname AS function, pg_get_function_arguments(p.oid) AS arguments
  FROM pg_proc AS p JOIN pg_depend AS d ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e'
  JOIN pg_extension AS e ON e.oid = d.refobjid AND e.extname = 'lock_ext'
 WHERE p.pronamespace <> 'lock_ext'::regnamespace
 ORDER BY proname COLLATE "C", pronargs;
SELECT c.relname AS view, a.attname AS "column", format_type(a.atttypid, a.atttypmod) AS type,
       has_table_privilege('public', c.oid, 'SELECT') AS public, has_table_privilege('pg_monitor', c.oid, 'SELECT') AS monitor
  FROM pg_class AS c JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0
  JOIN pg_depend AS d ON d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype = 'e'
  JOIN pg_extension AS e ON e.oid = d.refobjid AND e.extname = 'lock_ext'
 WHERE c.relkind = 'v' AND c.relnamespace <> 'lock_ext'::regnamespace
 ORDER BY c.relname COLLATE "C", a.attnum;
LOAD 'lock_ext';
SELECT name, setting, unit, context, vartype FROM pg_settings WHERE name LIKE 'lock_ext.%' ORDER BY name COLLATE "C";
