// SPDX-License-Identifier: Apache-2.0

//! Packs the chart, which the program carries.

use std::{
    env,
    error::Error,
    fs,
    path::{Path, PathBuf},
};

use flate2::{Compression, write::GzEncoder};
use tar::{Builder, Header};

const CHART: &str = "../../deploy/helm/skep";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed={CHART}");
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("OUT_DIR is missing")?);
    let file = fs::File::create(out.join("chart.tgz"))?;
    let mut archive = Builder::new(GzEncoder::new(file, Compression::best()));
    let mut files = Vec::new();
    collect(Path::new(CHART), &mut files)?;
    files.sort();
    for path in files {
        let bytes = fs::read(&path)?;
        // The same files make the same program.
        let mut header = Header::new_gnu();
        header.set_size(bytes.len().try_into()?);
        header.set_mode(0o644);
        header.set_cksum();
        let name = Path::new("skep").join(path.strip_prefix(CHART)?);
        archive.append_data(&mut header, name, bytes.as_slice())?;
    }
    archive.into_inner()?.finish()?;
    Ok(())
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> Result<(), Box<dyn Error>> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        match path.is_dir() {
            true => collect(&path, files)?,
            false => files.push(path),
        }
    }
    Ok(())
}
