//! Interprocessor interrupts as the kernel counts them.
//!
//! `/proc/interrupts` has one column a processor and, on x86, the rows `CAL` (function calls, as a
//! core synchronisation sends them) and `TLB` (flushes of other processors' address translations,
//! as a change of page permissions sends them). A remote flush travels as a function call, so since
//! Linux 4.8 `CAL` includes the count of `TLB`. The counts are those of the whole machine.

use std::fs;

/// The two counts of interest, of one processor or summed over all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ipis {
    /// Function call interrupts.
    pub cal: u64,
    /// TLB shootdowns.
    pub tlb: u64,
}

impl Ipis {
    /// Reads the counts of all processors.
    ///
    /// # Errors
    ///
    /// The reason why they cannot be read.
    pub fn read() -> Result<Self, String> {
        let text = text()?;
        let sum = |name| Ok::<_, String>(row(&text, name)?.into_iter().fold(0, u64::saturating_add));
        Ok(Self { cal: sum("CAL")?, tlb: sum("TLB")? })
    }

    /// Reads the counts of one processor.
    ///
    /// # Errors
    ///
    /// The reason why they cannot be read.
    pub fn read_of(cpu: usize) -> Result<Self, String> {
        let text = text()?;
        Ok(Self { cal: cell(&text, "CAL", cpu)?, tlb: cell(&text, "TLB", cpu)? })
    }

    /// Interrupts since `earlier`; 0 for a count that wrapped.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self { cal: self.cal.saturating_sub(earlier.cal), tlb: self.tlb.saturating_sub(earlier.tlb) }
    }
}

fn text() -> Result<String, String> {
    fs::read_to_string("/proc/interrupts").map_err(|error| format!("cannot read /proc/interrupts: {error}"))
}

/// The counts of a named row, one a processor that is online.
fn row(text: &str, name: &str) -> Result<Vec<u64>, String> {
    let counts = text
        .lines()
        .find_map(|line| line.trim_start().strip_prefix(name)?.strip_prefix(':'))
        .ok_or_else(|| format!("/proc/interrupts has no row {name}"))?;
    // The counts come first; the description that follows starts with a word.
    let counts: Vec<u64> = counts.split_whitespace().map_while(|word| word.parse().ok()).collect();
    if counts.is_empty() {
        return Err(format!("row {name} of /proc/interrupts holds no counts"));
    }
    Ok(counts)
}

/// One processor's count in a named row.
fn cell(text: &str, name: &str, cpu: usize) -> Result<u64, String> {
    let heading = text.lines().next().unwrap_or_default();
    // Processors that are offline have no column.
    heading
        .split_whitespace()
        .position(|word| word.strip_prefix("CPU").and_then(|number| number.parse().ok()) == Some(cpu))
        .and_then(|column| row(text, name).ok()?.get(column).copied())
        .ok_or_else(|| format!("row {name} of /proc/interrupts has no count of processor {cpu}"))
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
    fn a_row_has_one_count_a_processor() {
        assert_eq!(row(FIXTURE, "CAL"), Ok(vec![32_546, 28_575]));
        assert_eq!(row(FIXTURE, "TLB"), Ok(vec![6415, 5859]));
    }

    #[test]
    fn a_processor_is_found_by_the_heading() {
        assert_eq!(cell(FIXTURE, "CAL", 1), Ok(28_575));
        assert!(cell(FIXTURE, "CAL", 2).unwrap_err().contains("processor 2"));
        let offline = "  CPU0  CPU2\nCAL:  5  7  Function call interrupts\n";
        assert_eq!(cell(offline, "CAL", 2), Ok(7));
        assert!(cell(offline, "CAL", 1).is_err());
    }

    #[test]
    fn a_row_without_description_is_read() {
        assert_eq!(row(FIXTURE, "ERR"), Ok(vec![0]));
    }

    #[test]
    fn missing_and_empty_rows_are_named() {
        assert_eq!(row(FIXTURE, "XYZ"), Err("/proc/interrupts has no row XYZ".to_owned()));
        let text = "CAL: Function call interrupts\n";
        assert!(row(text, "CAL").unwrap_err().contains("no counts"));
    }

    #[test]
    fn a_name_matches_as_a_whole() {
        assert_eq!(row("CALX: 5\n CAL: 2 3 text 9\n", "CAL"), Ok(vec![2, 3]));
    }

    #[test]
    fn a_count_that_went_backwards_gives_zero() {
        let (early, late) = (Ipis { cal: 9, tlb: 1 }, Ipis { cal: 4, tlb: 5 });
        assert_eq!(late.since(early), Ipis { cal: 0, tlb: 4 });
    }
}
