//! The origin's figures: means of ten runs on a machine with 32 logical processors and two memory nodes.
//! One entry for each number of threads in `THREADS`.

/// A figure before the origin's change and after it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pair {
    pub(super) before: f64,
    pub(super) after: f64,
    /// In percent of the figure before, as the origin prints it.
    pub(super) gain: f64,
}

const fn pair(before: f64, after: f64, gain: f64) -> Pair {
    Pair { before, after, gain }
}

/// `pound_clock_gettime`, seconds: 4.7-rc7, patched.
pub(super) const CLOCK_GETTIME: [Pair; 10] = [
    pair(3.48, 3.06, 11.83),
    pair(3.33, 3.25, 2.40),
    pair(3.37, 3.26, 3.30),
    pair(3.32, 3.37, -1.60),
    pair(4.01, 3.90, 2.74),
    pair(3.63, 3.36, 7.41),
    pair(3.71, 3.11, 16.27),
    pair(3.75, 3.16, 15.74),
    pair(3.81, 3.25, 14.80),
    pair(3.88, 3.31, 14.76),
];

/// `pound_times`, seconds: 4.7-rc7, patched.
pub(super) const TIMES: [Pair; 10] = [
    pair(3.65, 3.25, 11.03),
    pair(3.45, 3.17, 7.92),
    pair(3.52, 3.22, 8.69),
    pair(3.29, 3.36, -2.04),
    pair(4.07, 3.92, 3.78),
    pair(3.87, 3.40, 12.17),
    pair(3.79, 3.16, 16.61),
    pair(3.88, 3.28, 15.42),
    pair(3.90, 3.38, 13.35),
    pair(4.00, 3.38, 15.45),
];

/// Cycles: before, after.
pub(super) const CYCLES: [Pair; 10] = [
    pair(19_699_563_964.0, 17_358_917_517.0, 11.88),
    pair(47_401_089_566.0, 45_103_730_829.0, 4.85),
    pair(80_923_501_004.0, 71_419_385_977.0, 11.74),
    pair(112_326_485_473.0, 110_371_524_403.0, 1.74),
    pair(193_455_574_299.0, 180_120_667_904.0, 6.89),
    pair(315_073_519_013.0, 271_222_225_950.0, 13.92),
    pair(321_969_515_332.0, 273_353_977_321.0, 15.10),
    pair(337_866_003_422.0, 289_462_481_538.0, 14.33),
    pair(338_712_691_920.0, 290_574_233_170.0, 14.21),
    pair(348_384_794_006.0, 292_691_648_206.0, 15.99),
];

/// L1 misses in percent of loads: before, after.
pub(super) const L1_MISSES: [Pair; 10] = [
    pair(7.43, 7.36, 0.94),
    pair(13.09, 13.52, -3.28),
    pair(13.79, 12.90, 6.45),
    pair(11.57, 8.71, 24.72),
    pair(12.39, 9.97, 19.53),
    pair(13.91, 11.73, 15.67),
    pair(13.71, 12.32, 10.14),
    pair(14.44, 13.40, 7.20),
    pair(15.86, 14.46, 8.83),
    pair(16.51, 15.06, 8.78),
];

/// `pound_clock_gettime`, seconds: the parent of 6e998916df, 6e998916df itself, 4.7-rc7.
#[expect(clippy::approx_constant, reason = "3.14 seconds")]
pub(super) const HISTORY_GETTIME: [[f64; 3]; 10] = [
    [2.23, 3.68, 3.48],
    [2.83, 3.78, 3.33],
    [2.84, 4.31, 3.37],
    [3.09, 3.61, 3.32],
    [3.14, 4.63, 4.01],
    [3.28, 5.75, 3.63],
    [3.02, 6.05, 3.71],
    [2.88, 6.30, 3.75],
    [2.95, 6.46, 3.81],
    [3.05, 6.42, 3.88],
];

/// `pound_times`, seconds: the same kernels.
pub(super) const HISTORY_TIMES: [[f64; 3]; 10] = [
    [2.27, 3.73, 3.65],
    [2.78, 3.77, 3.45],
    [2.79, 4.41, 3.52],
    [3.02, 3.56, 3.29],
    [3.10, 4.61, 4.07],
    [3.33, 5.75, 3.87],
    [2.96, 6.06, 3.79],
    [2.88, 6.24, 3.88],
    [2.98, 6.37, 3.90],
    [3.10, 6.35, 4.00],
];
