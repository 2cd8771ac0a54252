CREATE STREAM orders (
    id BIGNIT,
    t TIMESTAMP NOT,
    item
    , price DECIMAL(10,),
    WATERMARK t AS t - INTERVAL 5 SECONDS,
    PRIMARY KEY (id),
    WATERMARK FOR t AS u,
    tags MAP<STRING STRING>
) USING kafka OPTIONS (path);
CREATE TABLE customers (id BIGINT, PRIMARY KEY id) CHANGES FROM debezum;
