SELECT STREAM x /* the column
FROM a;
