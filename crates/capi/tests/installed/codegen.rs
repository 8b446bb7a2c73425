//! Asleep, a site is one 5-byte instruction, and its body is out of line.

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind};
use object::{Object as _, ObjectSection as _, ObjectSymbol as _};

use dormouse_testkit::c::{Build, Language, Link, have_basics, run};

/// The way to the return is straight: one five-byte test, no load, no branch, no call, and the body
/// behind the end.
fn check_asleep(code: &[u8], what: &str) {
    let mut decoder = Decoder::with_ip(64, code, 0, DecoderOptions::NONE);
    let mut hot: Vec<Instruction> = Vec::new();
    loop {
        let instruction = decoder.decode();
        hot.push(instruction);
        match instruction.flow_control() {
            FlowControl::Next => {}
            FlowControl::Return => break,
            _ => panic!("{what}: not straight: {hot:?}"),
        }
    }
    let is_site = |i: &&Instruction| i.mnemonic() == Mnemonic::Test && i.op1_kind() == OpKind::Immediate32;
    let sites: Vec<_> = hot.iter().filter(is_site).collect();
    assert_eq!(sites.len(), 1, "{what}: {hot:?}");
    assert_eq!(sites[0].len(), 5);
    let loads = |i: &Instruction| (0..i.op_count()).any(|n| i.op_kind(n) == OpKind::Memory);
    assert!(hot.iter().all(|i| !loads(i) || i.mnemonic() == Mnemonic::Lea), "{what}: a load: {hot:?}");
    // Backwards, where the compiler has put the body into a section for cold code.
    let target = sites[0].next_ip().wrapping_add_signed(i64::from(sites[0].immediate32() as i32));
    let end = hot.last().unwrap().next_ip();
    assert!(target >= end, "{what}: the body at {target} is before the return at {end}");
}

#[test]
fn a_sleeping_site_is_one_instruction() {
    if !have_basics() {
        return;
    }
    for (name, compiler) in crate::compilers() {
        for language in [Language::C, Language::CAsCxx] {
            let build = Build::new(
                &format!("codegen-{name}-{language:?}"),
                compiler,
                "-O2 -fPIC -fcf-protection=none",
            );
            let program =
                build.link("program", &[build.compile("codegen.c", language, &[])], Link::Shared, &[]);
            run(&program);
            let bytes = std::fs::read(&program).unwrap();
            let file = object::File::parse(&*bytes).unwrap();
            let text = file.section_by_name(".text").unwrap();
            for function in ["unlikely_off", "likely_on", "probe_asleep"] {
                let symbol = file.symbol_by_name(function).unwrap();
                let from = (symbol.address() - text.address()) as usize;
                check_asleep(&text.data().unwrap()[from..], &format!("{name} {language:?} {function}"));
            }
        }
    }
}
