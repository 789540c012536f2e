// Lints the OpenAPI document at the given path by all rules of Redocly but matters of taste, and prints each broken one.
import { createConfig, lint } from '@redocly/openapi-core';

const taste = `array-parameter-serialization boolean-parameter-prefixes path-http-verbs-order path-segment-plural
  paths-kebab-case request-mime-type required-string-property-missing-min-length response-mime-type
  scalar-property-missing-example tags-alphabetical`;
const rules = Object.fromEntries(taste.split(/\s+/).map((rule) => [rule, 'off']));
// Refeed has no address of its own: the operator of an installation answers for it.
rules['info-contact'] = 'off';
rules['rule/info-description'] = { subject: { type: 'Info', property: 'description' }, assertions: { defined: true } };

const config = await createConfig({ extends: ['all'], rules });
for (const { ruleId, message, location } of await lint({ ref: process.argv[2], config })) {
  console.log(`${ruleId} at ${location[0]?.pointer}: ${message}`);
}
