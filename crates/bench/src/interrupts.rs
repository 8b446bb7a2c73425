//! Interprocessor interrupts as the kernel counts them.
//!
//! `/proc/interrupts` has one column a processor and, on x86, the rows `CAL` (function calls, which is what
//! a core synchronisation sends) and `TLB` (flushes of other processors' address translations, which
//! is what a change of page permissions sends). A remote flush travels as a function call, so since
//! Linux 4.8 `CAL` includes what `TLB` counts. The counts are those of the whole machine.

use std::fs;

/// The two counts that matter here, summed over all processors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ipis {
    /// Function call interrupts.
    pub cal: u64,
    /// TLB shootdowns.
    pub tlb: u64,
}

impl Ipis {
    /// Reads the counts, or says why that cannot be done.
    pub fn read() -> Result<Self, String> {
        let text = fs::read_to_string("/proc/interrupts")
            .map_err(|error| format!("cannot read /proc/interrupts: {error}"))?;
        Ok(Self { cal: row(&text, "CAL")?, tlb: row(&text, "TLB")? })
    }

    /// Interrupts since `earlier`; a count that wrapped gives none.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self { cal: self.cal.saturating_sub(earlier.cal), tlb: self.tlb.saturating_sub(earlier.tlb) }
    }
}

/// Sum of a named row over the processors.
fn row(text: &str, name: &str) -> Result<u64, String> {
    let counts = text
        .lines()
        .find_map(|line| line.trim_start().strip_prefix(name)?.strip_prefix(':'))
        .ok_or_else(|| format!("/proc/interrupts has no row {name}"))?;
    // The counts come first; the description that follows starts with a word.
    let mut processors = 0;
    let mut sum = 0_u64;
    for count in counts.split_whitespace().map_while(|word| word.parse::<u64>().ok()) {
        processors += 1;
        sum = sum.saturating_add(count);
    }
    if processors == 0 {
        return Err(format!("row {name} of /proc/interrupts holds no counts"));
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIXTURE: &str = "           CPU0       CPU1       \n \
        24:          1          0  IO-APIC   5-edge      ACPI:Ged\n\
        NMI:          0          0   Non-maskable interrupts\n\
        RES:       7869       7903   Rescheduling interrupts\n\
        CAL:      32546      28575   Function call interrupts\n\
        TLB:       6415       5859   TLB shootdowns\n\
        ERR:          0\n";

    #[test]
    fn rows_are_summed_over_processors() {
        assert_eq!(row(FIXTURE, "CAL"), Ok(61_121));
        assert_eq!(row(FIXTURE, "TLB"), Ok(12_274));
    }

    #[test]
    fn a_row_without_description_is_read() {
        assert_eq!(row(FIXTURE, "ERR"), Ok(0));
    }

    #[test]
    fn a_missing_row_and_an_empty_one_are_named() {
        assert_eq!(row(FIXTURE, "XYZ"), Err("/proc/interrupts has no row XYZ".to_owned()));
        let text = "CAL: Function call interrupts\n";
        assert!(row(text, "CAL").unwrap_err().contains("no counts"));
    }

    #[test]
    fn a_name_matches_as_a_whole() {
        assert_eq!(row("CALX: 5\n CAL: 2 3 text 9\n", "CAL"), Ok(5));
    }

    #[test]
    fn a_count_that_went_backwards_gives_zero() {
        let (early, late) = (Ipis { cal: 9, tlb: 1 }, Ipis { cal: 4, tlb: 5 });
        assert_eq!(late.since(early), Ipis { cal: 0, tlb: 4 });
    }
}
