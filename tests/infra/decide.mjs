// Decides requests by policies, as IAM does. Input: {policies: {name: document}, requests: [{policy, action, resource, keys}]}.
// `keys`: the partition keys of the request; null: the request names no key. Output, for each request: "Allowed",
// "ImplicitlyDenied", "ExplicitlyDenied" or an error.
import { runSimulation } from '@cloud-copilot/iam-simulate'
import { readFileSync } from 'node:fs'

const ACCOUNT = '123456789012'
const everything = { Version: '2012-10-17', Statement: [{ Effect: 'Allow', Action: '*', Resource: '*' }] }
const { policies, requests } = JSON.parse(readFileSync(0, 'utf8'))

async function decide({ policy, action, resource, keys }) {
  const answer = await runSimulation(
    {
      request: {
        principal: `arn:aws:iam::${ACCOUNT}:role/${policy}`,
        action,
        resource: { resource, accountId: ACCOUNT },
        contextVariables: keys === null ? {} : { 'dynamodb:LeadingKeys': keys },
      },
      identityPolicies: [{ name: policy, policy: policies[policy] }],
      serviceControlPolicies: [{ orgIdentifier: 'root', policies: [{ name: 'all', policy: everything }] }],
      resourceControlPolicies: [],
    },
    {},
  )
  return answer.resultType === 'error' ? `error: ${answer.errors.message}` : answer.overallResult
}

const decisions = []
for (const request of requests) decisions.push(await decide(request))
console.log(JSON.stringify(decisions))
