// The types of zod as JSON schemas, each the only property of an object.
import { z } from "zod";

const types = {
  string: z.string(),
  string_min: z.string().min(1),
  string_max: z.string().max(253),
  string_length: z.string().length(5),
  string_regex: z.string().regex(/^[a-z]+-\d{2,4}$/),
  string_regex_unanchored: z.string().regex(/[0-9]{2}/),
  string_starts_with: z.string().startsWith("ab"),
  string_ends_with: z.string().endsWith("yz"),
  string_includes: z.string().includes("mid"),
  string_lowercase: z.string().lowercase(),
  string_uppercase: z.string().uppercase(),
  email: z.email(),
  uuid: z.uuid(),
  uuidv4: z.uuidv4(),
  uuidv6: z.uuidv6(),
  uuidv7: z.uuidv7(),
  guid: z.guid(),
  url: z.url(),
  http_url: z.httpUrl(),
  emoji: z.emoji(),
  base64: z.base64(),
  base64url: z.base64url(),
  hex: z.hex(),
  hash_sha256: z.hash("sha256"),
  nanoid: z.nanoid(),
  cuid: z.cuid(),
  cuid2: z.cuid2(),
  ulid: z.ulid(),
  xid: z.xid(),
  ksuid: z.ksuid(),
  ipv4: z.ipv4(),
  ipv6: z.ipv6(),
  cidrv4: z.cidrv4(),
  cidrv6: z.cidrv6(),
  mac: z.mac(),
  e164: z.e164(),
  jwt: z.jwt(),
  hostname: z.hostname(),
  iso_date: z.iso.date(),
  iso_time: z.iso.time(),
  iso_datetime: z.iso.datetime(),
  iso_datetime_offset: z.iso.datetime({ offset: true }),
  iso_duration: z.iso.duration(),
  template_literal: z.templateLiteral(["v", z.number(), ".", z.enum(["a", "b"])]),
  number: z.number(),
  number_bounds: z.number().gt(0).lte(1),
  number_multiple: z.number().multipleOf(0.01),
  positive: z.number().positive(),
  nonnegative: z.number().nonnegative(),
  float32: z.float32(),
  float64: z.float64(),
  int: z.int(),
  int32: z.int32(),
  uint32: z.uint32(),
  int_step: z.int().multipleOf(5).min(-20).max(20),
  boolean: z.boolean(),
  null: z.null(),
  any: z.any(),
  unknown: z.unknown(),
  never: z.never(),
  literal: z.literal("one"),
  literals: z.literal(["one", 2, true]),
  enum: z.enum(["a", "b c", 'd"e']),
  array: z.array(z.string()),
  array_bounds: z.array(z.number()).min(1).max(3),
  nonempty: z.array(z.boolean()).nonempty(),
  tuple: z.tuple([z.string(), z.number()]),
  tuple_rest: z.tuple([z.string()], z.int32()),
  object: z.object({ a: z.string(), b: z.number().optional() }),
  strict_object: z.strictObject({ a: z.string(), b: z.int32().optional() }),
  loose_object: z.looseObject({ a: z.string() }),
  catchall: z.object({ a: z.string() }).catchall(z.number()),
  record: z.record(z.string(), z.number()),
  record_enum: z.record(z.enum(["x", "y"]), z.string()),
  partial_record: z.partialRecord(z.enum(["x", "y"]), z.string()),
  record_pattern: z.record(z.string().regex(/^k[0-9]$/), z.boolean()),
  union: z.union([z.string(), z.number()]),
  discriminated: z.discriminatedUnion("kind", [
    z.object({ kind: z.literal("a"), a: z.string() }),
    z.object({ kind: z.literal("b"), b: z.number() }),
  ]),
  intersection: z.intersection(z.object({ a: z.string() }), z.object({ b: z.number() })),
  nullable: z.string().nullable(),
  nullish: z.int32().nullish(),
  optional: z.string().optional(),
  default: z.string().default("x"),
  prefault: z.string().prefault("x"),
  catch: z.string().catch("x"),
  readonly: z.array(z.string()).readonly(),
  brand: z.string().brand("b"),
  lazy: z.lazy(() => z.string()),
  json: z.json(),
  file: z.file(),
  stringbool: z.stringbool(),
};

class Tree {
  static of() {
    const node = z.object({ name: z.string(), get children() { return z.array(node).max(2); } });
    return node;
  }
}
types.recursive = Tree.of();

const found = {};
for (const [name, type] of Object.entries(types)) {
  for (const target of ["draft-2020-12", "draft-7", "draft-4"]) {
    try {
      const schema = z.toJSONSchema(z.object({ value: type }), { target, io: "input" });
      found[target === "draft-2020-12" ? name : `${name} (${target})`] = schema;
    } catch (error) {
      // zod itself has no JSON schema for the type.
    }
  }
}
console.log(JSON.stringify(found));
