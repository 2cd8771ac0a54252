CREATE STREAM orders (
    id BIGNIT,
    tags ARRAY<TEXT>,
    t TIMESTAMP,
    WATERMARK FOR t AS u - INTERVAL 5 SECONDS
);
CREATE STREAM empty ();
CREATE STREAM s (a INT) USING kafka OPTIONS (topic orders);
CREATE STREAM s (a INT b INT);
CREATE STREAM s (a INT) USING file OPTIONS (path 'a', path 'b');
