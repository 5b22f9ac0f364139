//! `MATERIALIZE pipeline | (SELECT …) TO 'url' [WITH (…)]`.

use datafusion::sql::sqlparser::tokenizer::Token;

use super::{Statements, keyword};
use crate::error::{Error, Place, Result};
use crate::statement::{MaterializeDefinition, MaterializeSource, PipelineDefinition, Statement};

/// The name of the pipeline that a query in brackets becomes.
const UNNAMED: &str = "query";

impl Statements<'_> {
    pub(super) fn materialize(&mut self, place: Place) -> Result<Statement> {
        self.skip(1);
        let first = self.peek(0);
        let source = match (&first.token, keyword(&first.token).as_deref()) {
            (Token::LParen, _) => MaterializeSource::Query(Box::new(self.bracketed_query()?)),
            (_, Some("SELECT" | "WITH" | "FROM")) => {
                let error = self.expected("a pipeline's name or a query in brackets", &first);
                return Err(error.with_hint("write MATERIALIZE (SELECT …) TO 'folder'"));
            }
            _ => {
                let (name, place) = self.name("a pipeline's name or a query in brackets")?;
                MaterializeSource::Pipeline { name, place }
            }
        };
        let next = self.peek(0);
        if !self.take("TO") {
            return Err(self.expected("TO and the folder to write to", &next));
        }
        let target = self.peek(0);
        let url_place = self.place(&target);
        let Token::SingleQuotedString(url) = target.token else {
            return Err(self.expected("the folder to write to, in single quotes", &target));
        };
        if url.is_empty() {
            return Err(Error::new("the folder to write to is empty").with_place(url_place));
        }
        self.skip(1);
        let options = if self.take("WITH") { self.options()? } else { Vec::new() };
        Ok(Statement::Materialize(MaterializeDefinition { source, url, url_place, options, place }))
    }

    fn bracketed_query(&mut self) -> Result<PipelineDefinition> {
        self.skip(1);
        let first = self.peek(0);
        let place = self.place(&first);
        if matches!(first.token, Token::EOF | Token::RParen) {
            return Err(self.expected("a query after `(`", &first));
        }
        let (query, text) = self.query_and_text(place)?;
        let close = self.peek(0);
        if close.token != Token::RParen {
            return Err(self.expected("`)` after the query", &close));
        }
        self.skip(1);
        Ok(PipelineDefinition {
            name: UNNAMED.to_owned(),
            or_replace: false,
            if_not_exists: false,
            options: Vec::new(),
            query,
            statement: format!("CREATE PIPELINE {UNNAMED} AS {text}"),
            text,
            place,
            name_place: place,
        })
    }
}
