//! Benchmark rows, statistics, tables and self-contained HTML reports.

#![forbid(unsafe_code)]
