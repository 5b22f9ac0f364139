//! The macro that generates the options' structs and the table of their descriptions from one declaration.

/// Declares all options, as shown in `table.rs`. Each row has a documented field and a description. The description's
/// name and documentation are those of the field.
///
/// - `feed`: the fields of `FeedOptions`.
/// - `read`: the fields of `ReadDefaults`, which a pipeline's `WITH` sets and `ReadOptions` has too.
/// - `rank`: the fields of `ReadOptions` that always have a value.
/// - `delivery`: the other fields of `ReadOptions`.
/// - `job`: the fields of `JobOptions`.
/// - `session`: the fields of `SessionOptions`.
///
/// A `StreamRequest` has the fields of `FeedOptions` and `ReadOptions`.
macro_rules! declare_options {
    (
        feed { $( $(#[doc = $feed_docs:literal])+ $feed:ident: $feed_type:ty = { $($feed_spec:tt)* } )+ }
        read { $( $(#[doc = $read_docs:literal])+ $read:ident: $read_type:ty = { $($read_spec:tt)* } )+ }
        rank { $(
            $(#[doc = $rank_docs:literal])+ #[serde($rank_serde:meta)]
            $rank:ident: $rank_type:ty = $rank_default:expr, { $($rank_spec:tt)* }
        )+ }
        delivery { $(
            $(#[doc = $delivery_docs:literal])+ $delivery:ident: $delivery_type:ty = { $($delivery_spec:tt)* }
        )+ }
        job { $( $(#[doc = $job_docs:literal])+ $job:ident: $job_type:ty = { $($job_spec:tt)* } )+ }
        session { $( $(#[doc = $session_docs:literal])+ $session:ident: $session_type:ty = { $($session_spec:tt)* } )+ }
    ) => {
        /// Options of a feed. An option that is `None` takes its value from the pipeline's `WITH`, or else its default.
        #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub struct FeedOptions {
            $( $(#[doc = $feed_docs])+
            #[serde(skip_serializing_if = "Option::is_none")]
            pub $feed: Option<$feed_type>, )+
        }

        /// How one rank reads a feed. An option that is `None` takes its value from the pipeline's `WITH`, or else its
        /// default.
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub struct ReadOptions {
            $( $(#[doc = $read_docs])+
            #[serde(skip_serializing_if = "Option::is_none")]
            pub $read: Option<$read_type>, )+
            $( $(#[doc = $rank_docs])+
            pub $rank: $rank_type, )+
            $( $(#[doc = $delivery_docs])+
            #[serde(skip_serializing_if = "Option::is_none")]
            pub $delivery: Option<$delivery_type>, )+
        }

        /// The reading options set by a pipeline's `WITH`.
        #[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub struct ReadDefaults {
            $( $(#[doc = $read_docs])+
            pub $read: Option<$read_type>, )+
        }

        /// How a job writes a feed's samples. An option that is `None` takes its default.
        #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub struct JobOptions {
            $( $(#[doc = $job_docs])+
            #[serde(skip_serializing_if = "Option::is_none")]
            pub $job: Option<$job_type>, )+
        }

        /// Options of a session. An option that is `None` takes its default.
        #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub struct SessionOptions {
            $( $(#[doc = $session_docs])+
            pub $session: Option<$session_type>, )+
        }

        /// Requests one rank's stream of a pipeline: the CMD of a descriptor, and the ticket created from it.
        ///
        /// Only `pipeline` is required. The other fields are those of [`FeedOptions`] and [`ReadOptions`].
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct StreamRequest {
            /// The pipeline's name.
            pub pipeline: String,
            /// The id that the feed must have. Tickets set it, so that a stream never belongs to another feed than the
            /// planned one.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub feed: Option<String>,
            $( $(#[doc = $feed_docs])+
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub $feed: Option<$feed_type>, )+
            $( $(#[doc = $read_docs])+
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub $read: Option<$read_type>, )+
            $( $(#[doc = $rank_docs])+
            #[serde($rank_serde)]
            pub $rank: $rank_type, )+
            $( $(#[doc = $delivery_docs])+
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub $delivery: Option<$delivery_type>, )+
        }

        const FEED: &[OptionSpec] = &[ $( OptionSpec {
            name: stringify!($feed),
            docs: concat!($($feed_docs),+).trim_ascii(),
            scope: Scope::Feed,
            in_with: true,
            $($feed_spec)*
            ..OptionSpec::BASE
        }, )+ ];

        const READ_DEFAULTS: &[OptionSpec] = &[ $( declare_options!(@read $read [$($read_docs)+] $($read_spec)*), )+ ];

        const READ: &[OptionSpec] = &[
            $( declare_options!(@read $read [$($read_docs)+] $($read_spec)*), )+
            $( OptionSpec {
                name: stringify!($rank),
                docs: concat!($($rank_docs),+).trim_ascii(),
                scope: Scope::Read,
                $($rank_spec)*
                ..OptionSpec::BASE
            }, )+
            $( OptionSpec {
                name: stringify!($delivery),
                docs: concat!($($delivery_docs),+).trim_ascii(),
                scope: Scope::Read,
                $($delivery_spec)*
                ..OptionSpec::BASE
            }, )+
        ];

        const JOB: &[OptionSpec] = &[ $( OptionSpec {
            name: stringify!($job),
            docs: concat!($($job_docs),+).trim_ascii(),
            scope: Scope::Job,
            $($job_spec)*
            ..OptionSpec::BASE
        }, )+ ];

        const SESSION: &[OptionSpec] = &[ $( OptionSpec {
            name: stringify!($session),
            docs: concat!($($session_docs),+).trim_ascii(),
            scope: Scope::Session,
            $($session_spec)*
            ..OptionSpec::BASE
        }, )+ ];

        impl OptionSet for FeedOptions {
            const TABLE: &'static [OptionSpec] = FEED;
        }

        impl OptionSet for ReadDefaults {
            const TABLE: &'static [OptionSpec] = READ_DEFAULTS;
        }

        impl OptionSet for ReadOptions {
            const TABLE: &'static [OptionSpec] = READ;
        }

        impl OptionSet for JobOptions {
            const TABLE: &'static [OptionSpec] = JOB;
        }

        impl OptionSet for SessionOptions {
            const TABLE: &'static [OptionSpec] = SESSION;
        }

        impl FeedOptions {
            /// These options, or else the values of `others`.
            #[must_use]
            pub fn or(&self, others: &Self) -> Self {
                Self { $( $feed: self.$feed.clone().or_else(|| others.$feed.clone()), )+ }
            }
        }

        impl JobOptions {
            /// These options, or else the values of `others`.
            #[must_use]
            pub fn or(&self, others: &Self) -> Self {
                Self { $( $job: self.$job.clone().or_else(|| others.$job.clone()), )+ }
            }
        }

        impl ReadOptions {
            /// These options, or else the values of `others`.
            #[must_use]
            pub fn or(&self, others: &ReadDefaults) -> Self {
                Self { $( $read: self.$read.clone().or_else(|| others.$read.clone()), )+ ..self.clone() }
            }
        }

        impl Default for ReadOptions {
            fn default() -> Self {
                Self { $( $read: None, )+ $( $rank: $rank_default, )+ $( $delivery: None, )+ }
            }
        }

        impl Default for StreamRequest {
            fn default() -> Self {
                Self::new("", &FeedOptions::default(), &ReadOptions::default())
            }
        }

        impl StreamRequest {
            /// The request for `pipeline` with these options.
            pub fn new(pipeline: &str, feed: &FeedOptions, read: &ReadOptions) -> Self {
                let (feed, read) = (feed.clone(), read.clone());
                Self {
                    pipeline: pipeline.to_owned(),
                    feed: None,
                    $( $feed: feed.$feed, )+
                    $( $read: read.$read, )+
                    $( $rank: read.$rank, )+
                    $( $delivery: read.$delivery, )+
                }
            }

            /// The options of the feed.
            pub fn feed_options(&self) -> FeedOptions {
                FeedOptions { $( $feed: self.$feed.clone(), )+ }
            }

            /// The options for reading it.
            pub fn read_options(&self) -> ReadOptions {
                ReadOptions {
                    $( $read: self.$read.clone(), )+
                    $( $rank: self.$rank.clone(), )+
                    $( $delivery: self.$delivery.clone(), )+
                }
            }
        }
    };
    (@read $read:ident [$($read_docs:literal)+] $($read_spec:tt)*) => {
        OptionSpec {
            name: stringify!($read),
            docs: concat!($($read_docs),+).trim_ascii(),
            scope: Scope::Read,
            in_with: true,
            $($read_spec)*
            ..OptionSpec::BASE
        }
    };
}

pub(super) use declare_options;
