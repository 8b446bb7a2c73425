//! The statistics of reports, comparisons and experiments, under their common names.
//!
//! Timings have long tails and more than one mode, so the functions that decide assume no shape:
//! medians with intervals by order statistics, the rank tests of Wilcoxon and of Mann and Whitney,
//! the shifts of Hodges and Lehmann, whose intervals contain exactly the shifts that these tests do
//! not reject, and the slopes of Theil and Sen. Only [`paired_interval`], the interval of a mean,
//! assumes that the mean of the differences is about normal, which holds for a dozen differences
//! unless some are extreme.
//!
//! Every function returns [`None`] if there are too few values, or if one of them is not a finite
//! number. None of them panics.
//!
//! The modules, each of which uses only those above it:
//!
//! - [`buckets`]: durations in exponential buckets, as services count them;
//! - `distributions`: the normal distribution, Student's t, and those of the rank sums;
//! - `summary`: numbers that summarize values;
//! - `interval`: intervals of means and medians;
//! - `ranks`: rank tests; `many`: many of them at once;
//! - `shifts`: the shift between two samples, and that of pairs;
//! - `slopes`: how much one number grows with another.

#![cfg_attr(doctest, doc = include_str!("../README.md"))]
#![forbid(unsafe_code)]

pub mod buckets;
mod distributions;
mod interval;
mod many;
mod ranks;
mod shifts;
mod slopes;
mod summary;

pub use distributions::{normal_cdf, normal_quantile, student_t_quantile};
pub use interval::{Estimate, Interval, median, paired_interval, paired_median_interval};
pub use many::benjamini_hochberg;
pub use ranks::{RankTest, mann_whitney, signed_rank};
pub use shifts::{shift, shift_of_pairs};
pub use slopes::slope;
pub use summary::{Statistics, geometric_mean, midmean, quantiles, ratio_of_medians};
