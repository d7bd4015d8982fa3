//! One experiment: its description, and the folder that it lives in.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use vlane_report::Report;

use crate::claim::{Figure, Goal};
use crate::picture::Picture;
use crate::texts::{Named, Value};

/// `experiment.toml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Description {
    /// Its name in lists, and its page's heading as long as it has no answer.
    pub(crate) title: String,
    /// The answer in one short sentence, with placeholders ([`crate::texts`]): its page's heading.
    #[serde(default)]
    pub(crate) answer: String,
    /// At most two sentences below the answer, losses first, with placeholders.
    #[serde(default)]
    pub(crate) lead: String,
    /// The picture that stands first on its page.
    pub(crate) picture: Option<Picture>,
    /// Figures that the texts name.
    #[serde(default, rename = "value")]
    pub(crate) values: BTreeMap<String, Value>,
    /// The publication, and the figure or table in it.
    pub(crate) source: String,
    /// The question.
    pub(crate) question: String,
    /// How the published figures were made, and in what ours differ.
    pub(crate) method: String,
    /// The command, words apart by spaces, but for those between double quotes; `{result}` stands
    /// for the file that the report goes to. It begins with `vlane-lab`.
    pub(crate) command: Option<String>,
    /// Takes the report of another experiment instead of a run of its own.
    pub(crate) uses: Option<String>,
    /// Features that vlane is built with for it.
    #[serde(default)]
    pub(crate) features: Vec<String>,
    /// How long it takes, in minutes.
    #[serde(default)]
    pub(crate) minutes: f64,
    /// Sections of the report that belong to it; all if there are none.
    #[serde(default)]
    pub(crate) sections: Vec<String>,
    /// Sections whose tables stand on the page.
    #[serde(default)]
    pub(crate) tables: Vec<String>,
    /// The published numbers, also those that contradict each other.
    #[serde(default, rename = "figure")]
    pub(crate) figures: Vec<Figure>,
    /// vlane's own goals, which are no published figures.
    #[serde(default, rename = "goal")]
    pub(crate) goals: Vec<Goal>,
    /// Results that agree with the publication, those that do not, and why; with placeholders.
    #[serde(default)]
    pub(crate) discussion: String,
}

/// A folder of `experiments/`.
#[derive(Debug)]
pub(crate) struct Experiment {
    pub(crate) name: String,
    pub(crate) folder: PathBuf,
    pub(crate) about: Description,
}

impl Description {
    /// The figures that its texts can name.
    pub(crate) fn named<'a>(&'a self, report: &'a Report) -> Named<'a> {
        Named { goals: &self.goals, figures: &self.figures, values: &self.values, report }
    }
}

impl Experiment {
    /// Reads one.
    fn read(folder: PathBuf) -> Result<Self> {
        let file = folder.join("experiment.toml");
        let text = std::fs::read_to_string(&file).with_context(|| format!("{}", file.display()))?;
        let about: Description =
            toml::from_str(&text).with_context(|| format!("{}", file.display()))?;
        if about.command.is_some() == about.uses.is_some() {
            bail!("{}: give either `command` or `uses`", file.display());
        }
        let figures = about.figures.iter().map(|figure| (&figure.says, figure.fault()));
        let goals = about.goals.iter().map(|goal| (&goal.says, goal.fault()));
        let values = about.values.iter().map(|(name, value)| (name, value.fault()));
        if let Some((says, fault)) =
            figures.chain(goals).chain(values).find_map(|(says, fault)| Some((says, fault?)))
        {
            bail!("{}: `{says}`: {fault}", file.display());
        }
        let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Self { name, folder, about })
    }

    /// All of them, by name.
    pub(crate) fn all(root: &Path) -> Result<Vec<Self>> {
        let folder = root.join("experiments");
        let entries =
            std::fs::read_dir(&folder).with_context(|| format!("{}", folder.display()))?;
        let mut folders: Vec<_> = entries
            .filter_map(|entry| entry.ok().map(|entry| entry.path()))
            .filter(|path| path.join("experiment.toml").is_file())
            .collect();
        folders.sort();
        let all = folders.into_iter().map(Self::read).collect::<Result<Vec<_>>>()?;
        for one in &all {
            if let Some(used) = &one.about.uses
                && !all.iter().any(|other| other.name == *used && other.about.command.is_some())
            {
                bail!(
                    "{}: uses `{used}`, which is not there or has no command of its own",
                    one.name
                );
            }
        }
        Ok(all)
    }

    /// The folder that its report is in.
    pub(crate) fn source_of_result<'a>(&'a self, all: &'a [Self]) -> &'a Path {
        let used =
            self.about.uses.as_ref().and_then(|used| all.iter().find(|other| other.name == *used));
        &used.unwrap_or(self).folder
    }

    /// Its stored report; none if it was not measured yet.
    pub(crate) fn report(&self, all: &[Self]) -> Result<Option<Report>> {
        let file = self.source_of_result(all).join("result.json");
        let report = file.is_file().then(|| Report::read(&file)).transpose();
        report.with_context(|| format!("{}: the result cannot be read", self.name))
    }

    /// One of its texts with the figures of a report.
    pub(crate) fn filled(&self, key: &str, text: &str, report: &Report) -> Result<String> {
        self.about.named(report).fill(text.trim()).with_context(|| self.place(key))
    }

    /// A key of its description, for errors.
    pub(crate) fn place(&self, key: &str) -> String {
        format!("experiments/{}/experiment.toml: {key}", self.name)
    }
}
