CREATE TABLE customers (id BIGINT NOT NULL, name STRING, country STRING, PRIMARY KEY (id));
CREATE TABLE countries (code STRING NOT NULL, label STRING NOT NULL, PRIMARY KEY (code));
CREATE SINK labelled USING parquet OPTIONS (path '/data/labelled');
SELECT TABLE c.name, n.label FROM customers c FULL JOIN countries n ON c.country = n.code;
SELECT TABLE c.name FROM customers c JOIN countries n ON c.name < n.code;
