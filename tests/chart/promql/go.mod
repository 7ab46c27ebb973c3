module promql

go 1.24

require github.com/prometheus/prometheus v0.308.0
