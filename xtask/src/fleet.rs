//! Programs that the tests of `serve` push to and that Debian lacks: an OpenTelemetry Collector,
//! put together by its own builder from parts of its core, and a `VictoriaMetrics` that takes OTLP.
//!
//! Each is built once, into the cache. Where one is not, its tests are skipped, and counted.

use std::path::{Path, PathBuf};

use crate::process::{Result, cache, discard, output, program, run, target, write};

const COLLECTOR: &str = "0.155.0";
const VICTORIA: &str = "1.110.0";

pub(crate) fn build() -> Result {
    let work = target().join("fleet");
    let collector = cache().join(format!("otelcol-{COLLECTOR}/otelcol"));
    if !collector.exists() {
        keep(&build_collector(&work)?, &collector)?;
    }
    let victoria = cache().join(format!("victoria-metrics-{VICTORIA}/victoria-metrics"));
    if !victoria.exists() {
        keep(&build_victoria(&work)?, &victoria)?;
    }
    discard(&[work])
}

/// A program is complete under its name, or not there.
fn keep(built: &Path, name: &Path) -> Result {
    let partial = name.with_extension(std::process::id().to_string());
    let kept = name.parent().map_or(Ok(()), std::fs::create_dir_all);
    let kept = kept.and_then(|()| std::fs::copy(built, &partial));
    let kept = kept.and_then(|_| std::fs::rename(&partial, name));
    kept.map_err(|why| format!("{}: {why}", name.display()))
}

fn build_collector(work: &Path) -> Result<PathBuf> {
    let core = "go.opentelemetry.io/collector";
    let configuration = format!(
        "dist:\n  name: otelcol\n  version: {COLLECTOR}\n  output_path: {}\n\
         receivers:\n  - gomod: {core}/receiver/otlpreceiver v{COLLECTOR}\n\
         exporters:\n  - gomod: {core}/exporter/debugexporter v{COLLECTOR}\n  \
         - gomod: {core}/exporter/otlphttpexporter v{COLLECTOR}\n",
        work.join("build").display()
    );
    let file = work.join("builder.yaml");
    write(&file, configuration)?;
    run(program("go install").arg(format!("{core}/cmd/builder@v{COLLECTOR}")).env("GOBIN", work))?;
    run(std::process::Command::new(work.join("builder")).arg("--config").arg(file))?;
    Ok(work.join("build/otelcol"))
}

fn build_victoria(work: &Path) -> Result<PathBuf> {
    let module = format!("github.com/VictoriaMetrics/VictoriaMetrics@v{VICTORIA}");
    let description = output(program("go mod download -json").arg(module))?;
    let description: serde_json::Value =
        serde_json::from_str(&description).map_err(|why| format!("go mod download: {why}"))?;
    let folder = description["Dir"].as_str().ok_or("go mod download names no folder")?;
    // It replaces modules, so it is built where it lies, in a copy that can be written to.
    let copy = work.join("victoria");
    discard(std::slice::from_ref(&copy))?;
    std::fs::create_dir_all(work).map_err(|why| why.to_string())?;
    run(program("cp -r --no-preserve=mode").arg(folder).arg(&copy))?;
    run(program("go build -mod=mod -o victoria-metrics ./app/victoria-metrics").current_dir(&copy))?;
    Ok(copy.join("victoria-metrics"))
}
