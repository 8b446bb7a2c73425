"""An embedded analytical database (DuckDB) over a table that it made up: joins, groups, windows, sorts."""
import sys

import duckdb

rows = int(sys.argv[1])
db = duckdb.connect(config={"threads": 2})
db.execute("select setseed(0.5)")
db.execute(
    f"""create table sale as select i as id, (random() * 5000)::int as customer, (random() * 300)::int as tea,
        (random() * 20)::int as cups, date '2020-01-01' + (random() * 1500)::int as day from range({rows}) t(i)"""
)
db.execute("create table customer as select i as id, 'customer ' || i as name, i % 40 as region from range(5000) t(i)")
for query in [
    "select tea, region, sum(cups), count(*) from sale join customer c on c.id = customer group by all",
    "select name, sum(cups) s from sale join customer c on c.id = customer group by name order by s desc",
    "select tea, day, cups, avg(cups) over (partition by tea order by day rows 30 preceding) from sale",
    "select a.tea, b.tea, count(*) n from sale a join sale b on a.customer = b.customer and a.day = b.day and a.tea < b.tea group by all order by n desc limit 50",
    "select customer, quantile_cont(cups, 0.9), mode(tea) from sale group by customer",
    "select * from sale order by cups, day, tea",
]:
    db.execute(query).fetchmany(100)
