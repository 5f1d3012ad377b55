// SPDX-License-Identifier: Apache-2.0

//! `metrics/html`: a self-contained page with all samples.

use std::sync::Arc;

use hive_script::text::json;
use hive_script::{CommandError, CommandHandle, Flag, Spec, function};

use super::{Dump, write_out};
use crate::sampler::Sampler;

/// The page around the samples.
const PAGE: &str = include_str!("page.html");
/// Where the samples go.
const PLACE: &str = "/*SAMPLES*/null";

pub(super) fn command(sampler: Arc<Sampler>) -> CommandHandle {
    let spec = Spec::new("metrics/html", "Write a page with plots of all samples")
        .flag(Flag::string("out", "", "File to write to instead of the log").short('o'));
    function(spec, move |cx, inv| {
        // `<` is escaped in this JSON, so that no name or label can end the script element.
        let series = sampler.series();
        let exists: Vec<u32> = series.iter().map(|series| series.exists.0).collect();
        let mut dump = Dump::new(&sampler, series);
        for (series, exists) in dump.samples.iter_mut().zip(exists) {
            series.exists = Some(exists);
        }
        let samples = json::compact(&dump).map_err(CommandError::new)?;
        write_out(cx, inv, &PAGE.replacen(PLACE, &samples, 1))
    })
}
